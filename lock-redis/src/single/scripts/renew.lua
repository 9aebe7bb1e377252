-- Renews or looks at many entries. ARGV: for each: kind, who (see record.lua), ttl in ms,
-- client. L, l: a lock; KEYS: the lock. P, p: a place; KEYS: the lock, the queue, the
-- waiters. Small letters write nothing.
-- Answers for each: -1 gone, else the ms left: of a lock as such, of a place plus 2^40, of a lock
-- that was handed over and not yet taken up plus 2^41, of a place whose client was suspect until now plus
-- 2^42. -2: the queue is none, but a key of another type.
local PLACE, HANDED, DOUBTED = 1099511627776, 2199023255552, 4398046511104
local out, k = {}, 1
local now
for a = 1, #ARGV, 4 do
  local kind, who, ttl, client = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local answer = -1
  local lock = KEYS[k]
  local value = value_of(lock)
  local letter = letter_of(value, who)
  if kind == 'L' or kind == 'l' then
    if letter and kind == 'L' then
      local left = lasting(lock, ttl)
      redis.call('PEXPIRE', lock, left)
      if #who > 33 then
        -- The client that has taken the lock over is now the one to tell of its loss.
        local before, other, label = string.match(value, '^(distlock1.|%x+|[%d+]+|%d+|)(%x+)(|.*)$')
        if other ~= client then redis.call('SET', lock, before .. client .. label, 'PX', left) end
      end
      answer = tonumber(ttl)
    elseif letter then
      answer = math.max(redis.call('PTTL', lock), 0)
    end
    k = k + 1
  else
    local queue, waiters = KEYS[k + 1], KEYS[k + 2]
    if letter then
      answer = HANDED + math.max(redis.call('PTTL', lock), 0)
    else
      local me = string.sub(who, 1, 32)
      local entry = read('HGET', waiters, me)
      local by, till, rest
      if type(entry) == 'string' then by, till, rest = string.match(entry, '^(%x+)|(%d+)(|%d+|%d+)$') end
      local ticket = read('ZSCORE', queue, who .. (by or ''))
      if type(entry) == 'table' or type(ticket) == 'table' then
        answer = -2
      elseif till and ticket then
        if not now then
          local t = redis.call('TIME')
          now = t[1] * 1000 + math.floor(t[2] / 1000)
        end
        if tonumber(till) <= now then
          answer = -1
        elseif kind == 'P' then
          local handed, _, _, _, chosen = read_lock(value)
          local doubted = speak(waiters, client, handed, chosen) == 1
          redis.call('HSET', waiters, me, by .. '|' .. string.format('%.0f', now + ttl) .. rest)
          keep_queue(queue, waiters, ttl, true)
          answer = (doubted and DOUBTED or PLACE) + tonumber(ttl)
        else
          answer = PLACE + tonumber(till) - now
        end
      end
    end
    k = k + 3
  end
  out[#out + 1] = answer
end
return out
