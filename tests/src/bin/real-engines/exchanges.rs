//! Exchanges: the text is a plain engine's, and the KV was fetched and not computed.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use gco_tests::real::Report;
use gco_tests::size::Size;

use super::Known;
use super::pair::{Pair, prompt_tokens};

/// Requests at the same time: half of what an engine computes at once.
const AT_ONCE: usize = 4;

pub(crate) async fn check(pair: &Pair, report: &mut Report, size: Size, known: &[Known]) -> anyhow::Result<()> {
    // No prompt is sent twice, so that nothing is found in an engine's own cache.
    let (alone, together) = known.split_at(size.choose(6, 20));
    one_by_one(pair, report, alone).await?;
    at_once(pair, report, together).await
}

/// Each exchange by itself, so that the counters of the engine are those of this exchange.
async fn one_by_one(pair: &Pair, report: &mut Report, known: &[Known]) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    let mut before = pair.decode.tokens().await?;
    for one in known {
        let reply = pair.ask(one).await?;
        let after = pair.decode.tokens().await?;
        let moved = after - before;
        before = after;
        let counted = reply.exchange();
        let fetched = prompt_tokens(&reply);
        let all_fetched = moved.external > 0.0 && fetched.is_none_or(|tokens| tokens == moved.external);
        if counted != "transferred" || !all_fetched || moved.local_compute != 0.0 || reply.said()? != one.text {
            wrong.push(format!("{counted}, {fetched:?} tokens, {moved:?}: {}", reply.text()));
        }
    }
    let seen = format!("{} of {}", known.len() - wrong.len(), known.len());
    report.check(
        &pair.named("an exchange that the proxy counts as transferred is all external_kv_transfer and no local_compute at decode"),
        if wrong.is_empty() { Ok(seen) } else { Err(format!("{seen}; {}", wrong[0])) },
    );
    Ok(())
}

/// All of them, several at once.
async fn at_once(pair: &Pair, report: &mut Report, known: &[Known]) -> anyhow::Result<()> {
    let counted_before = pair.proxy.metric("gco_proxy_exchanges_total", "outcome=\"transferred\"").await?;
    let (decode_before, prefill_before) = (pair.decode.tokens().await?, pair.prefill.tokens().await?);
    let began = tokio::time::Instant::now();
    let asked = stream::iter(known).map(async |one| (one, pair.ask(one).await)).buffer_unordered(AT_ONCE);
    let replies: Vec<_> = asked.collect().await;
    let took = began.elapsed();
    let (mut lost, mut outcomes, mut stopped) = (Vec::new(), BTreeMap::<String, usize>::new(), 0);
    for (one, reply) in replies {
        let reply = match reply {
            Ok(reply) => reply,
            Err(problem) => {
                lost.push(format!("{problem:#}: {}", one.request.body));
                continue;
            }
        };
        *outcomes.entry(reply.exchange().to_owned()).or_default() += 1;
        stopped += usize::from(reply.text().contains("\"finish_reason\":\"stop\""));
        match reply.said() {
            Ok(text) if text == one.text => {}
            Ok(text) => lost.push(format!("{text:?} in the place of {:?}: {}", one.text, one.request.body)),
            Err(problem) => lost.push(format!("{problem:#}")),
        }
    }
    let seen =
        format!("{} of {} in {took:.1?}, {stopped} ended by a stop token", known.len() - lost.len(), known.len());
    report.check(
        &pair.named("completions and chats, whole and streamed, are a plain engine's texts"),
        if lost.is_empty() { Ok(seen) } else { Err(format!("{seen}; {}", lost[0])) },
    );
    let transferred = outcomes.get("transferred").copied().unwrap_or_default();
    let counted = pair.proxy.metric("gco_proxy_exchanges_total", "outcome=\"transferred\"").await? - counted_before;
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let agree = transferred == known.len() && counted == transferred as f64;
    let seen = format!("{outcomes:?}, the proxy's metric says {counted}");
    report.check(&pair.named("every one is transferred, and counted so"), if agree { Ok(seen) } else { Err(seen) });
    let decode = pair.decode.tokens().await? - decode_before;
    let prefill = pair.prefill.tokens().await? - prefill_before;
    let all_fetched = decode.local_compute == 0.0 && decode.external > 0.0 && decode.external == prefill.local_compute;
    let seen = format!("prefill {prefill:?}, decode {decode:?}");
    report.check(
        &pair.named("decode computes no prompt token, and fetches as many as prefill computes"),
        if all_fetched { Ok(seen) } else { Err(seen) },
    );
    Ok(())
}
