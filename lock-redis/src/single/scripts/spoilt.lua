-- What is said where the fence mark shows no number that fences can rise above.
local SPOILT = 'DISTLOCK the fence mark %s is not a number below 2^53: somebody has written to it; set it to the greatest fence that was ever used'
