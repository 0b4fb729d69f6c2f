package oci

// Parts of the driver that are tested over tables.
var (
	ParseVersion = parseVersion
	OldRunc      = oldRunc
	OldRunsc     = oldRunsc
	MountsBelow  = mountsBelow

	ReleaseAtLeast = releaseAtLeast
)
