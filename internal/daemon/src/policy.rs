//! From the config to what the core decides by: the one place that knows both models.
//!
//! They are two on purpose. The core does not know TOML, defaults or presets, and the config does not know what is
//! decided; so neither changes with the other.

use evermux_config::{Config, Reinitialize, Share};
use evermux_core::handles::rule::{Condition, HandleRule, Scalar};
use evermux_core::input::{Limits, Policy};
use evermux_core::names::UpstreamName;

use crate::credentials;

/// What the config says, as far as the core decides by it.
pub(crate) fn policies(config: &Config) -> Vec<Policy> {
    let policy = |(name, upstream): (&evermux_config::UpstreamName, &evermux_config::Upstream)| Policy {
        name: UpstreamName::from(name.as_str()),
        never_reinitialize: upstream.reinitialize == Reinitialize::Never,
        own_sessions: upstream.share == Share::Client,
        trust_annotations: upstream.trust_annotations,
        grace: upstream.grace,
        keepalive: upstream.keepalive,
        call_timeout: upstream.call_timeout,
        idle: upstream.idle,
        annotate: upstream.annotate,
        refreshable: credentials::is_refreshable(upstream),
        identity_from_config: upstream.env_vars().is_empty(),
        handles: upstream.handles.iter().map(handle).collect(),
    };
    config.upstreams.iter().map(policy).collect()
}

/// The limits that the core holds; the others are held where requests come in.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits { links: config.limits.links, calls_of_link: config.limits.streams }
}

fn handle(rule: &evermux_config::HandleRule) -> HandleRule {
    // Taken apart, so that what is new there is not forgotten here.
    let evermux_config::HandleRule { born, used, settled, ttl } = rule.clone();
    let evermux_config::Born { tools: born_in, pointer: born_at, when, expires } = born;
    let evermux_config::Used { tools: used_in, argument: used_at } = used;
    HandleRule {
        born_in,
        born_at,
        born_when: conditions(when),
        expires_at: expires,
        ttl,
        used_in,
        used_at,
        settled_when: settled.map(conditions),
    }
}

fn conditions(all: Vec<evermux_config::Condition>) -> Vec<Condition> {
    let scalar = |scalar| match scalar {
        evermux_config::Scalar::Text(text) => Scalar::Text(text),
        evermux_config::Scalar::Integer(number) => Scalar::Integer(number),
        evermux_config::Scalar::Bool(truth) => Scalar::Bool(truth),
    };
    let condition = |evermux_config::Condition { pointer, any_of }| Condition {
        pointer,
        any_of: any_of.into_iter().map(scalar).collect(),
    };
    all.into_iter().map(condition).collect()
}

#[cfg(test)]
mod tests;
