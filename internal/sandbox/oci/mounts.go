package oci

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmountBelow detaches every mount of this name space at or below dir, so that
// a removal never walks into one. Runtimes mount in name spaces of their own;
// this is for those that leave something here.
func unmountBelow(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	points := mountsBelow(string(raw), dir)
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &os.PathError{Op: "umount", Path: points[i], Err: err})
		}
	}
	return errors.Join(errs...)
}

// mountsBelow are the mount points at or below dir in mountinfo's order, in
// which a mount follows the one it lies on.
func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for line := range strings.SplitSeq(mountinfo, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}
