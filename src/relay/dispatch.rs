//! Sends a prepared request until it is answered, refused for good, or retries are no longer brief.

use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use http::{Method, header};

use super::{Prepared, Relay};
use crate::observe::SharedLine;
use crate::translate::learn_refusals;
use crate::upstream::{Answer, Call, Tier, UpstreamError};
use crate::wire::ChatRequest;

impl Relay {
    /// The answer's head is a success when this returns; its body is not read yet.
    pub(super) async fn dispatch(
        &self,
        prepared: &Prepared,
        line: &SharedLine,
    ) -> Result<Answer, UpstreamError> {
        self.refuse_full(prepared)?;
        let started = Instant::now();
        let mut unfitted = prepared.body.clone();
        let mut fit = self.fit_ahead(prepared, line).await;
        let mut body = fit.apply(&unfitted, line);
        let mut retries = 0;
        let mut learnt = false;
        loop {
            let attempt = self.attempt(prepared, body.clone(), line);
            let error = match along(pin!(attempt), self.learn_windows(prepared)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if let Some(smaller) = Box::pin(self.fit_again(fit, prepared, &body, &error)).await {
                fit = smaller;
                let fitted = fit.apply(&unfitted, line);
                if fitted != body {
                    body = fitted;
                    line.with(|line| line.retry("context"));
                    continue;
                }
            }
            if !learnt && error.status == Some(400) {
                learnt = true;
                self.learn(prepared, &error, line);
                // Another request may have learnt it meanwhile; what counts is that the request can be sent otherwise.
                let edited = Self::edit_again(prepared);
                if edited != unfitted {
                    unfitted = edited;
                    body = fit.apply(&unfitted, line);
                    continue;
                }
            }
            if error.tier != Tier::Transient {
                return Err(Self::told(prepared, error));
            }
            let after = error.error.retry_after.map(Duration::from_secs);
            let Some(wait) = self.retry.wait(retries, started.elapsed(), after) else { return Err(error) };
            retries += 1;
            line.with(|line| line.retry("transient"));
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(
        &self,
        prepared: &Prepared,
        body: bytes::Bytes,
        line: &SharedLine,
    ) -> Result<Answer, UpstreamError> {
        line.content("upstream request", &body);
        let call = Call {
            method: Method::POST,
            path_and_query: prepared.path_and_query.clone(),
            headers: prepared.headers.clone(),
            body: body.into(),
            verbatim: false,
        };
        let answer = prepared.upstream.send(call).await?;
        let status = answer.status();
        line.with(|line| line.upstream_status = Some(status.as_u16()));
        if status.is_success() {
            return Ok(answer);
        }
        let retry_after =
            answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = answer.excerpt().await;
        line.content("upstream error", text.as_bytes());
        let mut error = UpstreamError::from_answer(&prepared.upstream.name, status.as_u16(), &text);
        error.error.retry_after = retry_after;
        Err(error)
    }

    /// Remembers the parameters that the error names, if they can be left out.
    fn learn(&self, prepared: &Prepared, error: &UpstreamError, line: &SharedLine) {
        let Ok(request) = ChatRequest::parse(&prepared.original) else { return };
        let upstream = &prepared.upstream;
        let learn = |target: &mut _| learn_refusals(&error.said, error.param.as_deref(), &request, target);
        let learnt = upstream.learn(learn);
        if learnt.is_empty() {
            return;
        }
        tracing::warn!(
            target: "respool::upstream",
            upstream = upstream.name,
            parameters = learnt.join(","),
            "this upstream refuses these parameters; they are left out from now on"
        );
        line.with(|line| line.retry("refused_parameter"));
    }
}

/// Runs `beside` along with `work`, and no longer than that.
async fn along<T>(mut work: Pin<&mut impl Future<Output = T>>, beside: impl Future<Output = ()>) -> T {
    tokio::select! {
        biased;
        done = work.as_mut() => return done,
        () = beside => {}
    }
    work.await
}
