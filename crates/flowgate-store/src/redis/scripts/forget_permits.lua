-- Forgets keys of which nothing matters any more, a bounded number of them.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  keys at most
-- Reply    nothing
local over = call('ZRANGEBYSCORE', prefix .. 'permits', '-inf', now, 'LIMIT', 0, ARGV[1])
call('HLEN', prefix .. 'permits:last')
for _, key in ipairs(over) do
  local sets = sets_of(key)
  call('UNLINK', sets.held, sets.line, sets.asked, sets.places)
  call('HDEL', prefix .. 'permits:last', key)
  call('ZREM', prefix .. 'permits', key)
end
