return require "modules.circle"
