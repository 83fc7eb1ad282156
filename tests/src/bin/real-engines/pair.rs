//! Two engines and the proxy before them.

use std::time::Duration;

use gco_tests::proxy::{Reply, Split};
use gco_tests::real::{RealEngine, RealEngineSpec, Report};
use serde_json::json;

use super::Known;

/// `GCO_PROXY_HANDOFF_TIMEOUT_SECONDS`, as shipped.
pub(crate) const HAND_OFF: Duration = Duration::from_secs(30);

/// What a fall-back may take beyond the hand-off deadline.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Which connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mooncake,
    Nixl,
}

impl Kind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Nixl => "nixl",
        }
    }
}

/// Prefill, decode and the proxy.
pub(crate) struct Pair {
    pub(crate) kind: Kind,
    pub(crate) prefill: RealEngine,
    pub(crate) decode: RealEngine,
    pub(crate) proxy: Split,
}

impl Pair {
    pub(crate) async fn start(kind: Kind, report: &Report) -> anyhow::Result<Self> {
        let (prefill, decode) = match kind {
            Kind::Mooncake => {
                (RealEngineSpec::mooncake("prefill", "kv_producer"), RealEngineSpec::mooncake("decode", "kv_consumer"))
            }
            Kind::Nixl => (RealEngineSpec::nixl("prefill"), RealEngineSpec::nixl("decode")),
        };
        let (prefill, decode) = (prefill.start()?, decode.start()?);
        let (first, second) = tokio::try_join!(prefill.is_up(), decode.is_up())?;
        report.saw("the start of prefill and decode took", format!("{first:.0?} and {second:.0?}"));
        let backends = json!({"prefill": [prefill.backend()], "decode": [decode.backend()]});
        let proxy = Split::before(&backends, &[("GCO_PROXY_CONNECTOR", kind.word())]).await?;
        Ok(Self { kind, prefill, decode, proxy })
    }

    /// A line's beginning.
    pub(crate) fn named(&self, what: &str) -> String {
        format!("{}: {what}", self.kind.word())
    }

    /// Sends a request to the proxy.
    pub(crate) async fn ask(&self, known: &Known) -> anyhow::Result<Reply> {
        self.proxy.ask(known.request.path, &known.request.body).await
    }
}

/// How many prompt tokens an answer counts, where it says so.
pub(crate) fn prompt_tokens(reply: &Reply) -> Option<f64> {
    let of = |value: &serde_json::Value| value["usage"]["prompt_tokens"].as_f64();
    if reply.body.starts_with(b"data: ") {
        return reply.events().iter().rev().find_map(|event| of(&serde_json::from_str(event).ok()?));
    }
    of(&reply.json())
}
