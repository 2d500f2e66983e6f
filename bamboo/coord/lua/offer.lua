-- What a member knows of a run that the store has lost; the highest version is kept.
-- KEYS: state, offers. ARGV: version, offer ("" only asks), seconds for which offers are taken.
-- Gives whether the run is there, the highest version offered or -1, that offer once the time for
-- offers is over (else ""), seconds, microseconds.
local now = redis.call('TIME')
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[2])
  return {1, -1, '', now[1], now[2]}
end
local now_s = tonumber(now[1]) + tonumber(now[2]) / 1000000
local held = redis.call('HMGET', KEYS[2], 'version', 'offer', 'began_s')
-- What is no number was written by nobody who knew the run.
local best = tonumber(held[1] or -1) or -1
local offer = held[2] or ''
local began_s = tonumber(held[3] or now_s) or now_s
if ARGV[2] ~= '' and tonumber(ARGV[1]) > best then
  best = tonumber(ARGV[1])
  offer = ARGV[2]
  redis.call('HSET', KEYS[2], 'version', best, 'offer', offer)
end
-- A clock that went back begins the time anew.
if best >= 0 and (not held[3] or began_s > now_s) then
  began_s = now_s
  redis.call('HSET', KEYS[2], 'began_s', string.format('%.6f', began_s))
end
if best < 0 or now_s - began_s < tonumber(ARGV[3]) then
  offer = ''
end
return {0, best, offer, now[1], now[2]}
