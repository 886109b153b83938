//! Serde for the numbered enums of `profiler-common`, which knows no serde.

macro_rules! by_number {
    ($module:ident, $type:ty) => {
        pub mod $module {
            use serde::{Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u16(*value as u16)
            }

            /// Unknown numbers become `None`: a newer minor version may know more.
            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                u16::deserialize(from).map(<$type>::from_u16)
            }
        }
    };
}

by_number!(call, profiler_common::Call);
by_number!(api, profiler_common::Api);
