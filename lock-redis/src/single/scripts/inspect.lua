-- KEYS: for each lock the lock, the queue, the waiters.
-- Answers for each: {held, mark or '', ms left, record or '', waiters, µs on the server's clock}.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

-- Places that have lapsed go when their turn comes; a long queue is not looked through.
local function waiting(queue, waiters)
  local places = redis.call('ZCARD', queue)
  if places == 0 or places > 256 then return places end
  local count = 0
  for _, place in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local till = string.match(redis.call('HGET', waiters, string.sub(place, 1, 32)) or '', '^%x+|(%d+)|')
    if till and tonumber(till) * 1000 > now then count = count + 1 end
  end
  return count
end

local out = {}
for k = 1, #KEYS, 3 do
  local value = value_of(KEYS[k])
  local mark, record = shown_of(value)
  out[#out + 1] = {value == false and 0 or 1, mark, redis.call('PTTL', KEYS[k]), record,
    waiting(KEYS[k + 1], KEYS[k + 2]), string.format('%.0f', now)}
end
return out
