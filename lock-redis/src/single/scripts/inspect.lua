-- KEYS: for each lock the lock, the holder's record, the queue, the waiters.
-- Answers for each: {held, mark or '', ms left, record or '', waiters, µs on the server's clock}.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local out = {}
for k = 1, #KEYS, 4 do
  local value = value_of(KEYS[k])
  local held = 1
  if value == false then held = 0 end
  local waiting = redis.call('ZCARD', KEYS[k + 2])
  -- Places that have lapsed go when their turn comes; a long queue is not looked through.
  if waiting > 0 and waiting <= 256 then
    waiting = 0
    for _, owner in ipairs(redis.call('ZRANGE', KEYS[k + 2], 0, -1)) do
      local till = string.match(redis.call('HGET', KEYS[k + 3], owner) or '', '^%x+|(%d+)|')
      if till and tonumber(till) * 1000 > now and owner ~= value then waiting = waiting + 1 end
    end
  end
  out[#out + 1] = {held, mark_of(value), redis.call('PTTL', KEYS[k]), redis.call('GET', KEYS[k + 1]) or '', waiting,
    string.format('%.0f', now)}
end
return out
