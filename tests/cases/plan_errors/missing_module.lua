local a = require "nothing_here"
local b = require "../load_plan"
local c = require "/etc/passwd"
local d = require "styls"
return plan { a.rules, b, c(), d.colwise {} }
