// Package image keeps the root file systems that sandboxes start from: it
// builds them from recipes, imports them from archives, finds out what they
// offer, and stores them under their digest.
//
// It never executes what is in an image on the host: recipes run inside a
// build root made by mmdebstrap, imported content is only read. It knows no
// container runtime; whoever wants interpreters asked for their versions gives
// it a Probe that runs a sandbox.
//
// On disk, below the folder given to Open:
//
//	<id>/rootfs/        the root, world-readable, no devices, no setuid files
//	<id>/rootfs.erofs   the same as one file, where mkfs.erofs was found
//	<id>/image.json     an Image; written last, so a folder with it is complete
//	names/<name>        the id a name points at
//	tmp/                work in progress; owned by the holder of build.lock
package image
