//! Keys, tokens and kubeconfig files of one control plane, kept in its folder.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use gco_runtime::random::{Randomness as _, SystemRandomness};

/// The user that may do everything.
pub(super) const ADMIN: &str = "admin";
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub(super) const SCHEDULER: &str = "system:kube-scheduler";

/// Secrets that outlive a restart, so that tokens that were handed out stay good.
#[derive(Debug)]
pub(super) struct Credentials {
    /// PEM file with the private key that signs service account tokens.
    pub(super) service_account_key: PathBuf,
    /// PEM file with its public half.
    pub(super) service_account_public_key: PathBuf,
    /// The API server's file of static tokens.
    pub(super) token_file: PathBuf,
    pub(super) admin_token: String,
    pub(super) controller_manager_token: String,
    pub(super) scheduler_token: String,
}

impl Credentials {
    pub(super) fn load_or_create(folder: &Path) -> anyhow::Result<Self> {
        let service_account_key = folder.join("service-accounts.key");
        let service_account_public_key = folder.join("service-accounts.pub");
        // The private key is written last: with it, both are there.
        if !service_account_key.is_file() {
            let (private, public) = key_pair()?;
            write_secret(&service_account_public_key, &public)?;
            write_secret(&service_account_key, &private)?;
        }
        let token = |name: &str| token_in(&folder.join(format!("{name}.token")));
        let credentials = Self {
            service_account_key,
            service_account_public_key,
            token_file: folder.join("tokens.csv"),
            admin_token: token("admin")?,
            controller_manager_token: token("controller-manager")?,
            scheduler_token: token("scheduler")?,
        };
        let lines = [
            format!("{},{ADMIN},{ADMIN},system:masters\n", credentials.admin_token),
            format!("{},{CONTROLLER_MANAGER},controller-manager\n", credentials.controller_manager_token),
            format!("{},{SCHEDULER},scheduler\n", credentials.scheduler_token),
        ];
        write_secret(&credentials.token_file, &lines.concat())?;
        Ok(credentials)
    }
}

fn key_pair() -> anyhow::Result<(String, String)> {
    let failed = |_| anyhow!("cannot make a key pair");
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(failed)?;
    let private = pair.to_pkcs8v1().map_err(failed)?;
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(failed)?;
    let encode = |tag: &str, bytes: &[u8]| pem::encode(&pem::Pem::new(tag, bytes));
    Ok((encode("PRIVATE KEY", private.as_ref()), encode("PUBLIC KEY", public.as_ref())))
}

fn token_in(path: &Path) -> anyhow::Result<String> {
    if let Ok(token) = std::fs::read_to_string(path) {
        return Ok(token.trim().to_owned());
    }
    let token = SystemRandomness.token();
    write_secret(path, &token)?;
    Ok(token)
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let write = || -> std::io::Result<()> {
        options.open(&unfinished)?.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Writes a kubeconfig file with one cluster, one user and one context, all of the same name.
pub(super) fn write_kubeconfig(
    path: &Path,
    name: &str,
    url: &str,
    certificate_authority: &Path,
    token: &str,
) -> anyhow::Result<()> {
    // JSON strings are YAML strings, whatever is in them.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let (name, url, token) = (quoted(name), quoted(url), quoted(token));
    let authority = quoted(&certificate_authority.to_string_lossy());
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster:\n    server: {url}\n    \
         certificate-authority: {authority}\nusers:\n- name: {name}\n  user:\n    token: {token}\ncontexts:\n\
         - name: {name}\n  context:\n    cluster: {name}\n    user: {name}\ncurrent-context: {name}\n"
    );
    write_secret(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_outlive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let first = Credentials::load_or_create(folder.path()).unwrap();
        let key = std::fs::read_to_string(&first.service_account_key).unwrap();
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"), "{key}");
        let second = Credentials::load_or_create(folder.path()).unwrap();
        assert_eq!(first.admin_token, second.admin_token);
        assert_ne!(first.admin_token, first.scheduler_token);
        assert_eq!(key, std::fs::read_to_string(&second.service_account_key).unwrap());
        let public = std::fs::read_to_string(&second.service_account_public_key).unwrap();
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----"), "{public}");
    }

    #[test]
    fn a_kubeconfig_file_can_be_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        write_kubeconfig(&path, "eu: \"west\"", "https://127.0.0.1:1", Path::new("/ca.crt"), "secret").unwrap();
        let config = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("eu: \"west\""));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:1"));
    }
}
