-- Create a run unless it is there.
-- KEYS: state, log, documents. ARGV: store id, state, entry, then name and text of each document.
-- The log entry of version V has the stream id V-1, since 0-0 is no id. Gives 1, or 0: it exists.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
-- First, since a server without memory refuses it, and no write after a first one that it took.
redis.call('HSET', KEYS[1], 'version', 0, 'store_id', ARGV[1], 'state', ARGV[2])
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('XADD', KEYS[2], '0-1', 'body', ARGV[3])
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
return 1
