//! The resources of a process: descriptors and resident memory, from /proc.

/// A process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Open descriptors.
    pub descriptors: usize,
    /// Resident memory, in KiB.
    pub resident: u64,
    /// The most resident memory since [`forget_peak`], in KiB.
    pub peak: u64,
}

/// Looks at a process.
pub fn measure(id: u32) -> Measured {
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_end_matches("kB").trim_matches([':', '\t', ' ']).parse().unwrap()
    };
    Measured { descriptors, resident: field("VmRSS"), peak: field("VmHWM") }
}

/// Resets the peak.
pub fn forget_peak(id: u32) {
    std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
}
