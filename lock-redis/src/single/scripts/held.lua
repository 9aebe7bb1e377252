-- Which of these keys hold a lock of ours. A foreign value can be of any length, and a foreign key of any type.
local out = {}
for k = 1, #KEYS do
  out[k] = read('GETRANGE', KEYS[k], 0, 8) == 'distlock1' and 1 or 0
end
return out
