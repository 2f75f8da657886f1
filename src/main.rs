//! Arguments in, exit code out. All work is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    respool::cli::main()
}
