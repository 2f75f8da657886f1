//! The measurements of the long runs: text of docs/faults.md, written by hand after each.

/// The end of the page.
pub const TEXT: &str = "\
## Measured

On 2026-11-21, with an unoptimised build, on two cores shared with other work (load average 10 to 16):

- **Memory of each row** (`just faults`): it grew by at most 48 MiB (`bomb-br`: six concurrent bodies of 104 bytes that unpack to 100 MiB);
  46 MiB were resident after all rows.
- **Soak** (`just soak`): 1,000 streams at once for ten minutes, 36,596 streams and 6,195 faults drawn from the table. No turn was
  lost, corrupted or crossed. Eleven faults that a brief retry normally repairs (a server that restarts, a 503) ended with their true error,
  because on so busy a machine the first attempt took longer than retries last (1.5 s). Resident memory was 96 MiB after two minutes and
  99 MiB after ten, with 2,010 and 2,001 descriptors, and 12 descriptors afterwards. After a SIGTERM in the middle of 1,000 further streams,
  all ended right.

## Run it

`cargo test faults` plays every case; `just faults` also measures the memory of each row, one after another; `just soak` is the soak.
";
