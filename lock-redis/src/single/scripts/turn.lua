-- A lock that was handed over, with this value, is given away by somebody who can speak for the waiter: its client is not suspect.
local function leave_turn(value)
  local owner, client = string.match(value, '^distlock1h|(%x+)|[%d+]+|%d+|(%x+)|')
  redis.call('HDEL', waiters, owner, 's:' .. client)
end
