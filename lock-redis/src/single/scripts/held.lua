-- Which of these keys hold a lock of ours. A foreign value can be of any length.
local out = {}
for k = 1, #KEYS do
  out[k] = redis.pcall('GETRANGE', KEYS[k], 0, 8) == 'distlock1' and 1 or 0
end
return out
