-- Prolongs many locks, each for who holds it with its fence, or (with a ttl of 0) only says how long it
-- lasts. KEYS: the node, then the locks.
-- ARGV: quorum, channel of the client, then for each owner, last fence or '' for any (to ask only), number of
-- fences, counter to adopt or '', ttl in ms or 0; process.
-- Answers for each {1, counter, 0, ms left} | {2, counter}: the owner's, but not with this fence
-- | {0, -1, '', 0} | {-1, why} | {-2, quorum}
local refused = refusal(redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum'))
local channel = ARGV[2]

local function renew(lock, owner, fence, fences, adopt, ttl)
  local vote = vote_of(value_of(lock), owner)
  if not vote then return {0, -1, '', 0} end
  local counter, adopts = tonumber(vote[COUNTER]), adopt ~= '' and vote[COUNTER] == adopt
  if not adopts and fence ~= '' and not has_fence(vote, fence, fences) then return {2, counter} end
  if ttl == '0' then return {1, counter, 0, redis.call('PTTL', lock)} end
  -- First: this is carried out where the memory is used up, and so is what follows in the same script.
  local left = lasting(lock, ttl)
  redis.call('PEXPIRE', lock, left)
  -- Who takes a lock over is to hear of a forced release.
  if adopts or vote[CHANNEL] ~= channel then
    vote[CHANNEL] = channel
    if adopts then vote[ADOPTED] = fence end
    write_vote(lock, owner, vote, 'KEEPTTL')
  end
  return {1, counter, 0, left}
end

local out = {}
for k = 2, #KEYS do
  local a = (k - 2) * 5 + 3
  local answer = refused or renew(KEYS[k], unpack(ARGV, a, a + 4))
  table.insert(out, #out + 1, answer)
end
return out
