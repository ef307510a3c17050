--- expect: MS0111 there is no module 'index'
return require "index"
