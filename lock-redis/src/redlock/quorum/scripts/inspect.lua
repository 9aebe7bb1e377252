-- What a node knows about locks, for people. KEYS: the locks. ARGV: '1' for those alone that this library holds.
-- Answers for each {mark, ms left, first fence, since, label, now} | {false}. The mark is that of the value up to its
-- first dot, which is the owner.
local t = redis.call('TIME')
local now = digits(t[1] * 1000000 + t[2])

local function inspected(lock)
  -- Any key may be asked about, and hold anything: its beginning tells enough.
  if ARGV[1] == '1' and not owner_of(read('GETRANGE', lock, 0, 40)) then return {false} end
  local held = value_of(lock)
  if not held then return {false} end
  local owner = owner_of(held)
  local vote = owner and vote_of(held, owner)
  local fence = ''
  if vote then
    local last = vote[ADOPTED] ~= '' and vote[ADOPTED] or vote[COUNTER]
    fence = digits(last - vote[FENCES] + 1)
  elseif ARGV[1] == '1' then
    return {false}
  end
  vote = vote or {}
  return {mark_of_hold(held), redis.call('PTTL', lock), fence, vote[SINCE] or '', vote[LABEL] or '', now}
end

local out = {}
for k = 1, #KEYS do out[k] = inspected(KEYS[k]) end
return out
