-- State and log entry together become the next version, if nobody was faster.
-- KEYS: state, log. ARGV: expected version, state, entry.
-- Gives 1 when committed, 0 when the version is another one by now, -1 when there is no run.
local version = redis.call('HGET', KEYS[1], 'version')
if not version then
  return -1
end
if version ~= ARGV[1] then
  return 0
end
local next_version = string.format('%d', tonumber(version) + 1)
redis.call('HSET', KEYS[1], 'version', next_version, 'state', ARGV[2])
redis.call('XADD', KEYS[2], next_version .. '-1', 'body', ARGV[3])
return 1
