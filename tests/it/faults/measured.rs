//! What the long runs measured: text of docs/faults.md, written by hand after each.

/// The end of the page.
pub const TEXT: &str = "\
## Measured

On 2026-11-21, unoptimised build, two cores that were shared with other work (load average 10 to 16):

- **Memory of each row** (`just faults`): at most 48 MiB more (`bomb-br`: six bodies of 104 bytes that unpack to 100 MiB, at once);
  46 MiB resident after all rows.
- **Soak** (`just soak`): 1,000 streams at once for ten minutes, 36,596 streams and 6,195 faults drawn from the table. No turn was
  lost, corrupted or crossed. Eleven faults that a brief retry mends (a server that restarts, a 503) ended with their own honest error:
  on so busy a machine the first attempt took longer than retries last (1.5 s). Resident memory 96 MiB after two minutes, 99 MiB after
  ten; 2,010 and 2,001 descriptors, 12 afterwards. SIGTERM in the middle of 1,000 further streams: all ended right.

## Run it

`cargo test faults` plays every case; `just faults` also measures the memory of each row, one after another; `just soak` is the soak.
";
