--- expect: MS0111 there is no module 'os'
return require "os"
