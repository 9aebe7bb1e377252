-- What a node knows about locks, for people. KEYS: for each lock the lock, the vote.
-- Answers for each {mark, ms left, first fence, since, label, now} | {false}. The mark is that of the value up to its
-- first dot, which is the owner.
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])

local function look(lock, key)
  local held = value_of(lock)
  if not held then return {false} end
  local mark = type(held) == 'string' and mark_of(string.match(held, '^[^.]*')) or ''
  local vote = redis.call('HMGET', key, 'counter', 'since', 'label', 'fence', 'fences')
  local last = tonumber((vote[4] or '') ~= '' and vote[4] or vote[1] or nil)
  local fence = last and string.format('%.0f', last - tonumber(vote[5] or '1') + 1) or ''
  return {mark, redis.call('PTTL', lock), fence, vote[2] or '', vote[3] or '', now}
end

local out = {}
for k = 1, #KEYS, 2 do out[#out + 1] = look(KEYS[k], KEYS[k + 1]) end
return out
