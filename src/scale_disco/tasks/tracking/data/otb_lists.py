"""Sequences of OTB: lists, attributes, and which frames of a video are evaluated."""

OTB2013 = (
    "Basketball", "Bolt", "Boy", "Car4", "CarDark", "CarScale", "Coke", "Couple", "Crossing", "David", "David2",
    "David3", "Deer", "Dog1", "Doll", "Dudek", "FaceOcc1", "FaceOcc2", "Fish", "FleetFace", "Football", "Football1",
    "Freeman1", "Freeman3", "Freeman4", "Girl", "Ironman", "Jogging-1", "Jogging-2", "Jumping", "Lemming", "Liquor",
    "Matrix", "Mhyang", "MotorRolling", "MountainBike", "Shaking", "Singer1", "Singer2", "Skating1", "Skiing",
    "Soccer", "Subway", "Suv", "Sylvester", "Tiger1", "Tiger2", "Trellis", "Walking", "Walking2", "Woman",
)  # fmt: skip
OTB50 = (
    "Basketball", "Biker", "Bird1", "BlurBody", "BlurCar2", "BlurFace", "BlurOwl", "Bolt", "Box", "Car1", "Car4",
    "CarDark", "CarScale", "ClifBar", "Couple", "Crowds", "David", "Deer", "Diving", "DragonBaby", "Dudek",
    "Football", "Freeman4", "Girl", "Human3", "Human4", "Human6", "Human9", "Ironman", "Jump", "Jumping", "Liquor",
    "Matrix", "MotorRolling", "Panda", "RedTeam", "Shaking", "Singer2", "Skating1", "Skating2-1", "Skating2-2",
    "Skiing", "Soccer", "Surfer", "Sylvester", "Tiger2", "Trellis", "Walking", "Walking2", "Woman",
)  # fmt: skip
OTB100 = tuple(sorted((
    *OTB50, "Bird2", "BlurCar1", "BlurCar3", "BlurCar4", "Board", "Bolt2", "Boy", "Car2", "Car24", "Coke", "Coupon",
    "Crossing", "Dancer", "Dancer2", "David2", "David3", "Dog", "Dog1", "Doll", "FaceOcc1", "FaceOcc2", "Fish",
    "FleetFace", "Football1", "Freeman1", "Freeman3", "Girl2", "Gym", "Human2", "Human5", "Human7", "Human8",
    "Jogging-1", "Jogging-2", "KiteSurf", "Lemming", "Man", "Mhyang", "MountainBike", "Rubik", "Singer1", "Skater",
    "Skater2", "Subway", "Suv", "Tiger1", "Toy", "Trans", "Twinnings", "Vase",
)))  # fmt: skip
LISTS = {"OTB2013": OTB2013, "OTB50": OTB50, "OTB100": OTB100}

# Attribute SV of the benchmark: "the ratio of the bounding boxes of the first frame and the current frame is out of the
# range"; 28 targets of OTB2013, as in its paper. The benchmark's own scripts omit Car4, by a blank in its table.
SCALE_VARIATION = frozenset((
    "Biker", "BlurBody", "BlurCar2", "BlurOwl", "Board", "Box", "Boy", "Car1", "Car2", "Car24", "Car4", "CarScale",
    "ClifBar", "Couple", "Crossing", "Dancer", "David", "Diving", "Dog", "Dog1", "Doll", "DragonBaby", "Dudek",
    "FleetFace", "Freeman1", "Freeman3", "Freeman4", "Girl", "Girl2", "Gym", "Human2", "Human3", "Human4", "Human5",
    "Human6", "Human7", "Human8", "Human9", "Ironman", "Jump", "Lemming", "Liquor", "Matrix", "MotorRolling", "Panda",
    "RedTeam", "Rubik", "Shaking", "Singer1", "Skater", "Skater2", "Skating1", "Skating2-1", "Skating2-2", "Skiing",
    "Soccer", "Surfer", "Toy", "Trans", "Trellis", "Twinnings", "Vase", "Walking", "Walking2", "Woman",
))  # fmt: skip

# First and last evaluated frame, by file number; of all other videos every frame is evaluated.
RANGES = {
    "BlurCar1": (247, 988), "BlurCar3": (3, 359), "BlurCar4": (18, 397), "David": (300, 770), "Diving": (1, 215),
    "Football1": (1, 74), "Freeman3": (1, 460), "Freeman4": (1, 283), "Tiger1": (1, 354),
}  # fmt: skip
TIGER1_OMITTED = 5  # first frames of Tiger1, which some toolkits skip
