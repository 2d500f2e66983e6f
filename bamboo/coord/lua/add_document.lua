-- Add a document to a run, unless it has one of that name.
-- KEYS: state, documents. ARGV: name, text. Gives 1, 0: it has, or -1: there is no run.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return -1
end
if redis.call('HGET', KEYS[2], ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
