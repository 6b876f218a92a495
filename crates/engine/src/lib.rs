//! The common language of all engines: time, input, output, verdict, deadline, event, drop reason, entropy, bounded tables.
#![forbid(unsafe_code)]
