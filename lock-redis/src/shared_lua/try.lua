-- What a command was refused with is noted.
local refused = {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = select(1, ...) .. ': ' .. answer.err
  end
end
