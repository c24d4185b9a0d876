-- Who holds permits of a key, and how many wait.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  key
-- ARGV[2]  milliseconds for which a place is kept that nobody asks for
-- Reply    how many stand in line or have a place; then each holder and when that ends
local sets = sets_of(ARGV[1])
local since = now - ARGV[2]
local waiting = call('ZCOUNT', sets.asked, format('(%d', since), '+inf')
  + call('ZCOUNT', sets.places, format('(%d', since * 1000), '+inf')
local replies = { waiting }
local held = call('ZRANGEBYSCORE', sets.held, format('(%d', now), '+inf', 'WITHSCORES')
for _, value in ipairs(held) do replies[#replies + 1] = value end
return replies
