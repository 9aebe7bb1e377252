-- KEYS: those of keys.lua, then the mark of an owner that has gone.
-- ARGV: owner, ttl in ms, client, wait, ticket or 0, grace in ms, may pause, number of fences, label,
-- whether it looks for all waiters of its client.
-- Answers {1, fences, missed, the beginning of the owner} | {2}
-- | {0, ticket or 0, rank, ms left or -1, {mark, record or '', µs} or {}, missed, look again in ms or -1, clients ahead or -1}
local gone = KEYS[5]
local me, ttl, client, wait, ticket, grace, may_pause, count, label, looks =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6], ARGV[7] == '1', tonumber(ARGV[8]), ARGV[9], ARGV[10] == '1'
local echo = string.sub(me, 1, 8)

-- Nobody has the lock or waits for it: it goes to the first to come.
if redis.call('EXISTS', lock, queue, gone) == 0 then
  local fences = next_fences(count)
  write_lock('n', me, fences, digits, client, label, ttl)
  -- A waiter that finds no queue has lost its place, and so have the others of its client.
  return {1, fences, ticket ~= '0' and 1 or 0, echo}
end
