-- Which of these keys hold a lock of ours. A foreign value can be of any length, and a foreign key of any type. Any other
-- refusal (a right that was taken away) says nothing about the lock, so it ends the script.
local out = {}
for k = 1, #KEYS do
  local head = redis.pcall('GETRANGE', KEYS[k], 0, 8)
  if type(head) == 'table' and not string.find(head.err or '', 'WRONGTYPE', 1, true) then
    head = redis.call('GETRANGE', KEYS[k], 0, 8)
  end
  out[k] = head == 'distlock1' and 1 or 0
end
return out
