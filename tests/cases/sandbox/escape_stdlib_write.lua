--- expect: MS0115 'transformer' cannot be changed: 'attention' is set here
require("transformer").attention = nil
return plan {}
