-- Give a store that has lost the run its newest state, the end of its log and its documents back.
-- KEYS: state, log, documents, offers. ARGV: store id, version, state, number of log entries, then
-- version and body of each, then name and text of each document. Gives 1, or 0: the run is there.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
-- First, since a server without memory refuses it, and no write after a first one that it took.
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'store_id', ARGV[1], 'state', ARGV[3])
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
local last = 4 + 2 * tonumber(ARGV[4])
for i = 5, last, 2 do
  redis.call('XADD', KEYS[2], ARGV[i] .. '-1', 'body', ARGV[i + 1])
end
for i = last + 1, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
return 1
