-- State and log entry together become the next version, if nobody was faster.
-- KEYS: state, log. ARGV: expected version, state, entry, store id ("": whichever).
-- Gives 1 when committed, 0 when version or store id are others by now, -1 when there is no run.
local held = redis.call('HMGET', KEYS[1], 'version', 'store_id')
if not held[1] then
  return -1
end
if held[1] ~= ARGV[1] or (ARGV[4] ~= '' and held[2] ~= ARGV[4]) then
  return 0
end
local next_version = string.format('%d', tonumber(held[1]) + 1)
-- First, since it may fail, and what a script has written before it fails stays.
local added = redis.pcall('XADD', KEYS[2], next_version .. '-1', 'body', ARGV[3])
if type(added) == 'table' and added.err then
  if not string.find(added.err, 'equal or smaller', 1, true) then
    return added
  end
  -- Somebody else wrote into the log, behind its end: no decision could follow for ever. So the run
  -- is lost here, and its members give it back.
  redis.call('DEL', KEYS[1])
  return -1
end
redis.call('HSET', KEYS[1], 'version', next_version, 'state', ARGV[2])
return 1
