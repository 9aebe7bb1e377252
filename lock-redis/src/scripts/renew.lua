-- Renews or looks at many entries. ARGV: for each: kind, who (see held.lua), ttl in ms,
-- client. L, l: a lock; KEYS: the lock, the holder's record. P, p: a place; KEYS: the lock, the queue, the
-- waiters. Small letters write nothing.
-- Answers for each: -1 gone, else the ms left: of a lock as such, of a place plus 2^40, of a lock
-- that was handed over and not yet taken up plus 2^41.
local PLACE, HANDED = 1099511627776, 2199023255552
local out, k = {}, 1
local now
for a = 1, #ARGV, 4 do
  local kind, who, ttl, client = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local answer = -1
  local lock = KEYS[k]
  if kind == 'L' or kind == 'l' then
    local mine = is_held_by(who, lock, KEYS[k + 1])
    if mine and kind == 'L' then
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', KEYS[k + 1], ttl)
      if #who > 32 then
        -- The client that has taken the lock over is now the one to tell of its loss.
        local since, label = string.match(redis.call('GET', KEYS[k + 1]), '^%d+|%x+|(%d+)|%x+|(.*)$')
        if since then
          redis.call('SET', KEYS[k + 1], who .. '|' .. since .. '|' .. client .. '|' .. label, 'PX', ttl)
        end
      end
      answer = tonumber(ttl)
    elseif mine then
      answer = math.max(redis.call('PTTL', lock), 0)
    end
    k = k + 2
  else
    local me, queue, waiters = who, KEYS[k + 1], KEYS[k + 2]
    if value_of(lock) == me then
      answer = HANDED + math.max(redis.call('PTTL', lock), 0)
    else
      local old, till, rest = string.match(redis.call('HGET', waiters, me) or '', '^(%x+)|(%d+)|(%d+|%d+)|%d$')
      if old and redis.call('ZSCORE', queue, me) then
        if not now then
          local t = redis.call('TIME')
          now = t[1] * 1000 + math.floor(t[2] / 1000)
        end
        if kind == 'P' then
          redis.call('HDEL', waiters, 's:' .. client)
          redis.call('HSET', waiters, me, client .. '|' .. string.format('%.0f', now + ttl) .. '|' .. rest .. '|0')
          for _, name in ipairs({queue, waiters}) do
            if redis.call('PTTL', name) < tonumber(ttl) then redis.call('PEXPIRE', name, tonumber(ttl) + 1000) end
          end
          answer = PLACE + tonumber(ttl)
        elseif tonumber(till) > now then
          answer = PLACE + tonumber(till) - now
        end
      end
    end
    k = k + 3
  end
  out[#out + 1] = answer
end
return out
