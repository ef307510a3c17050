--- expect: MS0112 there is no plan '../../../etc/passwd.lua'
return plan { extends "../../../etc/passwd.lua" }
