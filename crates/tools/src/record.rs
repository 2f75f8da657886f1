//! Writes one call at the gate into the audit log. A call that only reads is logged if it is refused, or if
//! a person agreed to it. Used by `set`.
//!
//! If the log cannot be written, tools still run, and each failure is logged.

use std::time::Instant;

use super::audit::{AuditConfig, AuditEntry, Step, append_entry};
use super::config::ToolsConfig;
use super::contract::{Approver, Invocation, ToolError, ToolOutput};
use super::offer::{MCP_PREFIX, Offer};

/// The record of one call for the log.
pub(super) struct Record<'a> {
    config: Option<&'a AuditConfig>,
    invocation: &'a Invocation,
    tool: &'a str,
    only_looks: bool,
    rule: String,
    /// The approver, if consent was needed.
    approved_by: Option<String>,
    /// The person or rule that refused it.
    refused_by: Option<String>,
    begun: Option<Instant>,
    has_ended: bool,
}

impl<'a> Record<'a> {
    pub(super) fn new(config: &'a ToolsConfig, invocation: &'a Invocation, offer: &'a Offer) -> Self {
        // A server may call its own tools harmless, but they are logged anyway.
        let only_looks = offer.spec.is_repeatable && !offer.name.starts_with(MCP_PREFIX);
        Self {
            config: config.audit.as_ref(),
            invocation,
            tool: &offer.name,
            only_looks,
            rule: String::new(),
            approved_by: None,
            refused_by: None,
            begun: None,
            has_ended: false,
        }
    }

    pub(super) fn note_rule(&mut self, source: &str) {
        source.clone_into(&mut self.rule);
    }

    /// Notes the approver. A call that a person agreed to is always logged.
    pub(super) fn note_approval(&mut self, approver: &dyn Approver) {
        self.only_looks &= !approver.is_person();
        self.approved_by = Some(approver.prior_consent().unwrap_or("person").to_owned());
    }

    pub(super) fn note_refusal(&mut self, who: &str) {
        self.refused_by = Some(who.to_owned());
    }

    pub(super) async fn write_refusal(&mut self) {
        self.has_ended = true;
        let entry = self.full_entry(Step::Refused);
        self.write_entry(entry).await;
    }

    pub(super) async fn write_start(&mut self) {
        self.begun = Some(Instant::now());
        if !self.only_looks {
            let entry = self.full_entry(Step::Begun);
            self.write_entry(entry).await;
        }
    }

    pub(super) async fn write_end(&mut self, result: &Result<ToolOutput, ToolError>) {
        self.has_ended = true;
        let outcome = match result {
            Ok(_) => "ok",
            Err(ToolError::Failed(_)) => "failed",
            Err(ToolError::Protocol(_)) => "protocol_error",
            Err(ToolError::Denied(_)) => "denied",
            Err(ToolError::Transient(_)) => "transient",
            Err(ToolError::Unreachable(_)) => "unreachable",
            Err(ToolError::TimedOut(_)) => "timed_out",
        };
        if !self.only_looks {
            let entry = self.end_entry(outcome);
            self.write_entry(entry).await;
        }
    }

    /// Records that the process which made the call ended before the call.
    pub(super) async fn write_interruption(&mut self) {
        self.has_ended = true;
        if !self.only_looks {
            let entry = self.end_entry("unknown");
            self.write_entry(entry).await;
        }
    }

    /// Returns an entry with the arguments, the rule and the approver.
    fn full_entry(&self, step: Step) -> Option<AuditEntry> {
        let has_content = self.config?.content && !self.invocation.caller.is_private;
        let mut entry = self.bare_entry(step)?.with_arguments(&self.invocation.arguments, has_content);
        entry.rule = Some(self.rule.clone());
        if step == Step::Refused {
            entry.outcome = self.refused_by.as_ref().map(|who| format!("refused by {who}"));
        } else {
            entry.approved_by.clone_from(&self.approved_by);
        }
        Some(entry)
    }

    fn end_entry(&self, outcome: &str) -> Option<AuditEntry> {
        let took = self.begun.map(|begun| clock::to_millis(begun.elapsed()));
        Some(AuditEntry { outcome: Some(outcome.to_owned()), took_ms: took, ..self.bare_entry(Step::Ended)? })
    }

    fn bare_entry(&self, step: Step) -> Option<AuditEntry> {
        self.config?;
        Some(AuditEntry::new(step, &self.invocation.caller, &self.invocation.key, self.tool))
    }

    async fn write_entry(&self, entry: Option<AuditEntry>) {
        let (Some(config), Some(entry)) = (self.config.cloned(), entry) else { return };
        // Another process may hold the lock.
        let written = tokio::task::spawn_blocking(move || append_entry(&config, entry)).await;
        if let Ok(Err(error)) = written {
            log_failure(&error);
        }
    }
}

/// A call whose future is dropped was cancelled.
impl Drop for Record<'_> {
    fn drop(&mut self) {
        let is_open = self.begun.is_some() && !self.has_ended && !self.only_looks;
        let (Some(config), Some(entry)) = (self.config, self.end_entry("cancelled").filter(|_| is_open))
        else {
            return;
        };
        if let Err(error) = append_entry(config, entry) {
            log_failure(&error);
        }
    }
}

fn log_failure(error: &std::io::Error) {
    tracing::error!(target: "respool::tools", %error, "the audit log cannot be written: calls of tools are not recorded");
}
