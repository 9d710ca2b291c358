//! Control: the one owner of superblocks, events, bitmap, member map and flush rounds.
