--- expect: MS0111 no module 'index'
return require "index"
