return plan { require "modules.circle" }
