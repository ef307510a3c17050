--- expect: MS0112 no plan '../../../etc/passwd.lua'
return plan { extends "../../../etc/passwd.lua" }
