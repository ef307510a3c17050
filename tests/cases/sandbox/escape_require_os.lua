--- expect: MS0111 no module 'os'
return require "os"
