-- Forgets an instance.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  instance
-- Reply    nothing
call('HDEL', prefix .. 'instances', ARGV[1])
call('ZREM', prefix .. 'instances:seen', ARGV[1])
