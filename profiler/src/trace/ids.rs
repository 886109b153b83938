//! Serde for the numbered enums of `profiler-common`, which knows no serde: numbers on disk, names in JSON.

macro_rules! numbered {
    ($module:ident, $type:ty, $name:ident) => {
        pub mod $module {
            use std::borrow::Cow;

            use serde::{Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    to.serialize_str(value.$name())
                } else {
                    to.serialize_u16(*value as u16)
                }
            }

            /// Unknown numbers and names become `None`: a newer minor version may know more.
            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                if from.is_human_readable() {
                    let name = Cow::<str>::deserialize(from)?;
                    let known = <$type>::ALL.into_iter().find(|value| value.$name() == name);
                    Ok(known.unwrap_or(<$type>::None))
                } else {
                    u16::deserialize(from).map(<$type>::from_u16)
                }
            }
        }
    };
}

numbered!(call, profiler_common::Call, name);
numbered!(api, profiler_common::Api, symbol);
