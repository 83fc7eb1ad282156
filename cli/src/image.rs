//! Images by region: each region pulls an ECR image from its own registry.

use std::collections::BTreeMap;

/// The DNS suffix of a partition's registries, by the beginning of its region names; the first match counts.
const SUFFIX_BY_REGION_PREFIX: [(&str, &str); 7] = [
    ("cn-", "amazonaws.com.cn"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("eusc-", "amazonaws.eu"),
    ("", "amazonaws.com"),
];

fn registry_suffix(region: &str) -> &'static str {
    let found = SUFFIX_BY_REGION_PREFIX.iter().find(|(prefix, _)| region.starts_with(prefix));
    found.map_or("amazonaws.com", |(_, suffix)| suffix)
}

/// `image` as `region` pulls it: an ECR image from the same account's registry in that region, any other as it is.
#[must_use]
pub fn in_region(image: &str, region: &str) -> String {
    rewritten(image, region).unwrap_or_else(|| image.to_owned())
}

fn rewritten(image: &str, region: &str) -> Option<String> {
    if image.contains("://") {
        return None;
    }
    let (host, repository) = image.split_once('/')?;
    let (account, rest) = host.split_once(".dkr.ecr.")?;
    let (home, suffix) = rest.split_once('.')?;
    let is_account = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
    if !is_account || suffix != registry_suffix(home) {
        return None;
    }
    Some(format!("{account}.dkr.ecr.{region}.{}/{repository}", registry_suffix(region)))
}

/// Images of all `regions`, when at least one of them differs from `image`.
#[must_use]
pub fn by_region(image: &str, regions: &[String]) -> Option<BTreeMap<String, String>> {
    let images: BTreeMap<String, String> =
        regions.iter().map(|region| (region.clone(), in_region(image, region))).collect();
    images.values().any(|of_region| of_region != image).then_some(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ecr_image_is_pulled_from_the_registry_of_each_region() {
        let image = "123456789012.dkr.ecr.us-east-2.amazonaws.com/gco/vllm:v1@sha256:ab";
        let expected = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/gco/vllm:v1@sha256:ab";
        assert_eq!(in_region(image, "eu-west-1"), expected);
        assert_eq!(in_region(image, "us-east-2"), image);
        let china = in_region(image, "cn-north-1");
        assert_eq!(china, "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/gco/vllm:v1@sha256:ab");
        assert_eq!(in_region(&china, "us-east-2"), image);
    }

    #[test]
    fn every_other_image_stays_as_it_is() {
        for image in [
            "vllm/vllm-openai:v0.28.0",
            "vllm",
            "https://123456789012.dkr.ecr.us-east-2.amazonaws.com/gco/vllm:v1",
            "12.dkr.ecr.us-east-2.amazonaws.com/gco/vllm:v1",
            "123456789012.dkr.ecr.us-east-2.amazonaws.com.cn/gco/vllm:v1",
            "123456789012.dkr.ecr.us-east-2.example.com/gco/vllm:v1",
            "ghcr.io/a.dkr.ecr.b.amazonaws.com/x",
        ] {
            assert_eq!(in_region(image, "eu-west-1"), image);
            assert_eq!(by_region(image, &["eu-west-1".to_owned()]), None);
        }
    }

    #[test]
    fn images_are_listed_for_all_regions_once_one_differs() {
        let image = "123456789012.dkr.ecr.us-east-2.amazonaws.com/gco/vllm:v1";
        let regions = ["us-east-2".to_owned(), "eu-west-1".to_owned()];
        assert_eq!(by_region(image, &regions).unwrap().len(), 2);
        assert_eq!(by_region(image, &regions[..1]), None);
    }
}
