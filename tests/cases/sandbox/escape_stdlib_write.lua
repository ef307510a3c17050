--- expect: MS0115 'transformer' is read-only: 'attention' cannot be assigned
require("transformer").attention = nil
return plan {}
