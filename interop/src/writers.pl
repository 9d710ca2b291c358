# Writes sectors that say where they belong and by which write they came, straight to devices, until it is killed.
#
# Arguments: how many writes are to be acknowledged before the file /tmp/acknowledged appears; whether that is the end (1) or not (0);
# where to log; then for each writer its device and the numbers of `Writer` in ledger.rs, separated by commas. The log holds a little-endian
# number of 64 bits for each writer: how many of its writes have been acknowledged.
use strict;
use warnings;
use Fcntl;

my ($enough, $end, $log, @writers) = @ARGV;
my $page = 4096;
pipe(my $acknowledged, my $acknowledge) or die "pipe: $!";
my @pids;
for my $me (0 .. $#writers) {
  my $pid = fork();
  defined $pid or die "fork: $!";
  if ($pid == 0) { close $acknowledged; work($me, split /,/, $writers[$me]); exit; }
  push @pids, $pid;
}
close $acknowledge;
my $got = 0;
while ($got < $enough) { $got += sysread($acknowledged, my $bytes, $enough - $got) || die "the writers have ended: $!"; }
if ($end) { close $acknowledged; waitpid $_, 0 for @pids; }
open(my $done, ">", "/tmp/acknowledged") or die "acknowledged: $!";
close $done;
unless ($end) { 1 while sysread($acknowledged, my $bytes, 4096); }

sub work {
  my ($me, $device, $first, $stride, $cell, $cells, $block, $number, $x) = @_;
  use integer;
  # When nobody listens any more, it ends between two writes.
  local $SIG{PIPE} = "IGNORE";
  sysopen(my $array, $device, O_WRONLY | O_DIRECT) or die "$device: $!";
  sysopen(my $noted, $log, O_WRONLY | O_SYNC) or die "$log: $!";
  my $next = sub { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $x >> 8 };
  # Direct writes are made from whole pages.
  my $memory = "\0" x ($cell * 512 + $page);
  my $from = -unpack("J", pack("p", $memory)) & ($page - 1);
  for (my $count = 1; ; $count++) {
    my $start = $first + $next->() % $cells * $stride;
    my $blocks = $cell / $block;
    my $at = $next->() % $blocks;
    my $len = 1 + $next->() % ($blocks - $at);
    my ($sector, $sectors) = ($start + $at * $block, $len * $block);
    my $bytes = join "", map { pack("Q<Q<", $sector + $_, $number + $count) x 32 } 0 .. $sectors - 1;
    substr($memory, $from, length $bytes) = $bytes;
    sysseek($array, $sector * 512, 0) or die "seek: $!";
    my $written = syswrite($array, $memory, length $bytes, $from);
    defined $written && $written == length $bytes or die "$device: write: $!";
    sysseek($noted, $me * 8, 0);
    syswrite($noted, pack("Q<", $count)) == 8 or die "$log: $!";
    syswrite($acknowledge, ".") or exit;
  }
}
