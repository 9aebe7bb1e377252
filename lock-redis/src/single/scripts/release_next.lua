-- Goes on where release.lua has left a free lock to those that wait for it.
local _, again = pass_on(nil, may_pause)
return {freed, again}
